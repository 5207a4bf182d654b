"""From text and images to batches: files, tokenisers, corpora on disk, batches by tokens."""

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from ..files import LABELS as LABELS, PAIR_LABELS as PAIR_LABELS
    from .batch_shapes import BatchShapes as BatchShapes
    from .batches import Epoch as Epoch, epoch_of as epoch_of
    from .corpus import NO_LABEL as NO_LABEL, Corpus as Corpus
    from .corpus_facts import (
        FACTS as FACTS,
        CorpusCounts as CorpusCounts,
        describe_counts as describe_counts,
        read_facts as read_facts,
    )
    from .extension import Spelling as Spelling, adds_symbols as adds_symbols
    from .image_files import Pixels as Pixels, read_image as read_image
    from .image_preparation import check_images as check_images, prepare_images as prepare_images
    from .image_tasks import (
        IMAGES as IMAGES,
        ImageFacts as ImageFacts,
        ImageTask as ImageTask,
        Normalisation as Normalisation,
        image_facts_text as image_facts_text,
        image_task as image_task,
        image_texts as image_texts,
        read_image_facts as read_image_facts,
    )
    from .imported_tokeniser import original_files as original_files, read_huggingface as read_huggingface
    from .kinds import KINDS as KINDS
    from .labels import check_labels as check_labels
    from .mixture import Mixture as Mixture, shares_of as shares_of
    from .packing import Packing as Packing
    from .preparation import (
        TRAIN as TRAIN,
        VALIDATION as VALIDATION,
        Data as Data,
        prepare as prepare,
        read_data as read_data,
    )
    from .roles import (
        Roles as Roles,
        check_classes as check_classes,
        check_ids as check_ids,
        check_special_ids as check_special_ids,
        fits as fits,
        other_use as other_use,
        roles_for as roles_for,
        roles_of as roles_of,
    )
    from .sources import changes_of_files as changes_of_files
    from .spans import (
        SPANS as SPANS,
        SpanFacts as SpanFacts,
        asked_questions as asked_questions,
        read_span_facts as read_span_facts,
        span_texts as span_texts,
        windows_of as windows_of,
    )
    from .tagged import word_pieces as word_pieces
    from .tasks import (
        Batch as Batch,
        Task as Task,
        language_batch as language_batch,
        padded as padded,
        parallel_batch as parallel_batch,
        task_of as task_of,
    )
    from .text_corpora import TextCorpus as TextCorpus, corpora_of as corpora_of, count_rows as count_rows
    from .text_frame import MASK as MASK, Frame as Frame, PairFrame as PairFrame
    from .text_lines import groups as groups, lines as lines, lines_of as lines_of, rows as rows
    from .tokeniser import Ranges as Ranges, TextTokeniser as TextTokeniser
    from .tokeniser_directory import (
        TOKENISER_FILES as TOKENISER_FILES,
        has_labels as has_labels,
        label_texts as label_texts,
        read_labels as read_labels,
        read_tokenisers as read_tokenisers,
        reads_pairs as reads_pairs,
        tokeniser_texts as tokeniser_texts,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__)
