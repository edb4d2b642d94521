"""The models of a server of bundles: the contents of the files of STMS_BUNDLE, in a temporary database.

A bundle is the tar file of an export, or a folder that it was unpacked into; the setting names one, or a
folder with several. Every file is checked as in an import.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from app.domain import bundle
from app.domain.bundle import Manifest
from app.domain.errors import ServiceError, SetupError
from app.services.bundle_import import import_bundle
from app.services.models import DEFAULT_ALIAS
from app.settings import Settings
from app.store.unit_of_work import Store

_MOST_MODELS: Final = 10_000


class BadBundle(SetupError):
    """STMS_BUNDLE names something that is not a bundle, or a damaged one."""


def publish_bundles(store: Store, settings: Settings, report: Callable[[str], None]) -> None:
    """Publish the bundles of ``settings.bundle``, and point the alias latest of each model to its own.

    Models that no bundle has any more lose theirs, so that they are not found. A bundle that was published
    before is not read again. report: called with a sentence for each model. Raises BadBundle.
    """
    if settings.bundle is None:
        return
    paths = _paths(settings.bundle)
    if settings.bundle_model is not None and len(paths) > 1:
        raise BadBundle(f"STMS_BUNDLE_MODEL names one model, and {settings.bundle} has {len(paths)} bundles.")
    models: dict[str, Path] = {}
    for path in paths:
        manifest, digest = _manifest(path)
        name = settings.bundle_model or manifest.model
        if name in models:
            raise BadBundle(f"{models[name]} and {path} are both of model {name!r}.")
        models[name] = path
        number = _published(store, name, digest)
        if number is None:
            number = _import(store, settings, path, name)
        _point(store, name, number)
        report(f"Model {name} is version {manifest.version} of {manifest.model}, from {path}.")
    _remove_others(store, set(models))


def _paths(source: Path) -> list[Path]:
    """The bundles of a tar file or folder, sorted by their names. Raises BadBundle."""
    if not source.exists():
        raise BadBundle(f"{source} does not exist: STMS_BUNDLE names a bundle, or a folder of bundles.")
    if source.is_file() or (source / bundle.MANIFEST).is_file():
        return [source]
    found = [
        path
        for path in sorted(source.iterdir())
        if (path.suffix == ".tar" and path.is_file()) or (path / bundle.MANIFEST).is_file()
    ]
    if not found:
        raise BadBundle(f"{source} has no bundle: neither {bundle.MANIFEST} nor files that end with .tar.")
    return found


def _manifest(path: Path) -> tuple[Manifest, str]:
    """The manifest of a bundle and its digest; nothing else of it is looked at. Raises BadBundle."""
    try:
        if path.is_dir():
            with (path / bundle.MANIFEST).open("rb") as file:
                content = file.read(bundle.MAX_MANIFEST_BYTES + 1)
        else:
            with tarfile.open(path, "r:") as archive:
                member = archive.next()
                inner = None if member is None else archive.extractfile(member)
                content = b"" if inner is None else inner.read(bundle.MAX_MANIFEST_BYTES + 1)
        if len(content) > bundle.MAX_MANIFEST_BYTES:
            raise BadBundle(f"The manifest of {path} has more than {bundle.MAX_MANIFEST_BYTES} bytes.")
        return msgspec.json.decode(content, type=Manifest), bundle.digest_of(content)
    except OSError as error:
        raise BadBundle(f"{path} cannot be read: {error.strerror or error}.") from error
    except (tarfile.TarError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBundle(f"{path} is not a bundle: {error}.") from error


def _published(store: Store, model: str, digest: str) -> int | None:
    with store.read() as uow:
        known = uow.models.of_bundle(model, digest)
    return None if known is None else known.version


def _import(store: Store, settings: Settings, path: Path, model: str) -> int:
    """Import a bundle; returns the number of its version. Raises BadBundle."""
    try:
        with TemporaryDirectory(prefix="bundle-", dir=settings.data_dir) as folder:
            source = _packed(path, Path(folder) / "bundle.tar") if path.is_dir() else path
            made = import_bundle(
                store,
                source,
                model=model,
                alias=None,
                allow_older=True,
                created_by="bundle",
                limits=settings,
            )
    except ServiceError as error:
        faults = "".join(f" {fault.field}: {fault.message}" for fault in error.faults[:3])
        raise BadBundle(f"{path} cannot be served: {error.message}{faults}") from error
    except OSError as error:
        name = Path(str(error.filename or path)).name
        raise BadBundle(f"{path} cannot be read: {name}: {error.strerror or error}.") from error
    except ValueError as error:
        raise BadBundle(f"{path} is not a bundle: {error}") from error
    return made.version.version


def _packed(folder: Path, target: Path) -> Path:
    """Write the tar file that a folder was unpacked from. Raises OSError and ValueError."""
    with target.open("wb") as tar:
        for piece in bundle.pack(folder):
            tar.write(piece)
    return target


def _point(store: Store, model: str, number: int) -> None:
    with store.begin() as uow:
        present = uow.models.find_alias(model, DEFAULT_ALIAS)
        if present is None or present.version != number:
            uow.models.point(model, DEFAULT_ALIAS, number)


def _remove_others(store: Store, models: set[str]) -> None:
    with store.begin() as uow:
        for summary in uow.models.summaries(limit=_MOST_MODELS)[0]:
            alias = None if summary.name in models else uow.models.find_alias(summary.name, DEFAULT_ALIAS)
            if alias is not None:
                uow.models.delete_alias(summary.name, DEFAULT_ALIAS, expected_revision=alias.revision)
