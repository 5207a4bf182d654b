"""The entries of the weight maps in `tfkit/interop/maps`."""

from __future__ import annotations

from ..plugin import WeightMap

_SUMMARIES = {
    "albert": "ALBERT: encoder, masked words",
    "bart": "BART",
    "bert": "BERT: encoder, pre-training, masked words, labels of texts and of words",
    "clip": "CLIP: texts and images",
    "deit": "DeiT: encoder, labels of images",
    "distilbert": "DistilBERT: encoder, masked words, labels of texts",
    "electra": "ELECTRA: encoder, generator, discriminator",
    "gemma2": "Gemma 2",
    "gpt2": "GPT-2",
    "gpt_neox": "GPT-NeoX, Pythia",
    "gptj": "GPT-J",
    "llama": "Llama 1 to 3",
    "m2m_100": "M2M-100, NLLB without experts",
    "marian": "Marian, OPUS-MT",
    "mbart": "mBART",
    "mistral": "Mistral 7B",
    "modernbert": "ModernBERT: encoder, masked words",
    "olmo2": "OLMo 2",
    "pegasus": "Pegasus",
    "qwen3": "Qwen3 without experts",
    "roberta": "RoBERTa, XLM-R, CamemBERT: encoder, masked words, labels of texts",
    "t5": "T5, T5 1.1, Flan-T5, mT5",
    "vit": "ViT: labels of images",
    "whisper": "Whisper",
}
ENTRIES = [WeightMap(name=name, summary=text, file=f"tfkit.interop:maps/{name}.yaml") for name, text in _SUMMARIES.items()]
