"""What a job may say of a Hugging Face model: its folder, and which other keys mean something."""

from dataclasses import fields

from bamboo import extras
from bamboo.config.tree import HF, JobConfig, LoraConfig, ModelConfig
from bamboo.errors import InputError
from bamboo.kept_weights import CONFIG, weight_files
from bamboo.named_files import what_is_wrong

_OF_ANY = ("model", "context", "vocabulary", "lora", "requirements", "wheelhouse")
"""Keys of [model] that a Hugging Face model has, too, or that follow from its data; its config.json
says the others."""


def check_hf(job: JobConfig) -> None:
    """Check what [model] says, without a look at the folder. Raises InputError."""
    model, lora = job.model, job.model.lora
    if lora != LoraConfig():
        if not model.is_hf:
            remedy = f'leave it out, or take model = "{HF}FOLDER"'
            raise _at(job, "model.lora", lora.rank, "is of Hugging Face models", remedy)
        if lora.rank < 1:
            raise _at(job, "model.lora.rank", lora.rank, "is no rank", "write 8, for example")
        if not lora.targets:
            remedy = 'name linear layers, such as ["q_proj", "v_proj"]'
            raise _at(job, "model.lora.targets", [], "name nothing", remedy)
        if lora.alpha <= 0:
            raise _at(job, "model.lora.alpha", lora.alpha, "is not above 0", "write 16")
        if not 0 <= lora.dropout < 1:
            remedy = "give a number from 0 and below 1"
            raise _at(job, "model.lora.dropout", lora.dropout, "is out of range", remedy)
    if not model.is_hf:
        return
    if not model.hf_folder:
        remedy = f'write "{HF}FOLDER", with the path of a folder that has a {CONFIG}'
        raise _at(job, "model.model", model.model, "names no folder", remedy)
    for field in fields(ModelConfig):
        value = getattr(model, field.name)
        if field.name not in _OF_ANY and value != field.default:
            raise _at(
                job,
                f"model.{field.name}",
                value,
                "is of the built-in GPT",
                f"leave it out: the folder's {CONFIG} says it",
            )


def check_hf_folder(job: JobConfig) -> None:
    """Check the folder of the model, and that what reads it is installed. Raises InputError."""
    extras.need("hf", what=f"model.model = {job.model.model!r}")
    folder = job.named(job.model.hf_folder)
    if not folder.exists():
        raise _at(
            job,
            "model.model",
            job.model.model,
            f"there is no folder {folder}, and nothing is downloaded",
            "get one with `hf download ORGANISATION/MODEL --local-dir FOLDER`, and write "
            f'"{HF}FOLDER"',
        )
    if wrong := what_is_wrong(folder / CONFIG):
        remedy = "name a folder as save_pretrained writes it"
        raise _at(job, "model.model", job.model.model, wrong, remedy)
    if not job.train.init:
        weight_files(folder)


def _at(job: JobConfig, key: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError.at(file=job.file, key=key, value=value, problem=problem, remedy=remedy)
