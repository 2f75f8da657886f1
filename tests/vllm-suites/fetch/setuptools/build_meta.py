"""The one answer that pip needs."""
import os
import pathlib


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    version = os.environ["VLLM_VERSION"]
    folder = pathlib.Path(directory, f"vllm-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder.name


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(*_, **__):
    raise NotImplementedError("these sources are only read")
