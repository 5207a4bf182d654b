"""Training recipes: the same YAML and the same located errors as specs. No torch."""

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .chosen import Chosen as Chosen, chosen_for as chosen_for, recipe_text as recipe_text
    from .load import (
        FILES as FILES,
        describes_model as describes_model,
        describes_training as describes_training,
        files_in as files_in,
        load_recipe as load_recipe,
        recipe_of as recipe_of,
    )
    from .parts import recipe_schema as recipe_schema
    from .recipe import (
        GuidedAlignment as GuidedAlignment,
        Lora as Lora,
        Parameters as Parameters,
        Recipe as Recipe,
        alignments_of as alignments_of,
        check_corpora as check_corpora,
        check_guided_alignment as check_guided_alignment,
        check_image_settings as check_image_settings,
        check_metric as check_metric,
        check_packing as check_packing,
        check_sampling as check_sampling,
        check_teacher_forcing as check_teacher_forcing,
        corpora_in as corpora_in,
        rows_with_links as rows_with_links,
        schedule_warning as schedule_warning,
        without_smoothing as without_smoothing,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__)
