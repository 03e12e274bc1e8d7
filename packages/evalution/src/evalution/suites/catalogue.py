"""The suites that come with the runner, by name; the class says the rest."""

from __future__ import annotations

from collections.abc import Mapping

CATALOGUE: Mapping[str, str] = {
    "MultipleChoice": "multiple_choice:MultipleChoice",
    "Generation": "generation:Generation",
    "Perplexity": "perplexity:Perplexity",
    "arc_challenge": "tasks.arc:ARCChallenge",
    "arc_easy": "tasks.arc:ARCEasy",
    "boolq": "tasks.boolq:BoolQ",
    "cola": "tasks.glue:CoLA",
    "gsm8k": "tasks.gsm8k:GSM8K",
    "gsm8k_cot": "tasks.gsm8k:GSM8KCoT",
    "gsm8k_cot_llama": "tasks.gsm8k:GSM8KCoTLlama",
    "gsm8k_cot_zeroshot": "tasks.gsm8k:GSM8KCoTZeroshot",
    "gsm8k_platinum": "tasks.gsm8k:GSM8KPlatinum",
    "gsm8k_platinum_cot": "tasks.gsm8k:GSM8KPlatinumCoT",
    "gsm8k_platinum_cot_llama": "tasks.gsm8k:GSM8KPlatinumCoTLlama",
    "gsm8k_platinum_cot_zeroshot": "tasks.gsm8k:GSM8KPlatinumCoTZeroshot",
    "hellaswag": "tasks.hellaswag:HellaSwag",
    "lambada_openai": "tasks.lambada:LambadaOpenAI",
    "lambada_standard": "tasks.lambada:LambadaStandard",
    "mmlu": "tasks.mmlu:MMLU",
    "mnli": "tasks.glue:MNLI",
    "mrpc": "tasks.glue:MRPC",
    "piqa": "tasks.piqa:PIQA",
    "qnli": "tasks.glue:QNLI",
    "qqp": "tasks.glue:QQP",
    "rte": "tasks.glue:RTE",
    "sst2": "tasks.glue:SST2",
    "wikitext": "tasks.wikitext:Wikitext",
    "winogrande": "tasks.winogrande:WinoGrande",
    "wnli": "tasks.glue:WNLI",
}
"""Name to `module:Class`, the module being one of this package."""
