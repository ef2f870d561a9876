"""Where files are kept: a directory, or a bucket of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gateway.errors import StartupFailed
from gateway.store.file_storage import DirectoryStorage
from gateway.store.object_storage import ObjectStorage

FILES_DIR: Final = "files"
_S3: Final = "s3://"


def open_file_storage(place: str | None, data_dir: Path) -> DirectoryStorage | ObjectStorage:
    """Open the storage at a directory or `s3://BUCKET/PREFIX`, by default in the data directory.

    Credentials, region and endpoint are what the AWS SDK finds in the environment.
    Raises: `StartupFailed`: what speaks to it is not installed, or the place is none.
    """
    if place is None:
        return DirectoryStorage(data_dir / FILES_DIR)
    if "://" not in place:
        return DirectoryStorage(Path(place))
    if not place.startswith(_S3) or not place.removeprefix(_S3).strip("/"):
        raise StartupFailed("SLUICE_FILE_STORAGE must be a directory, or s3://BUCKET/PREFIX")
    try:
        from s3fs import S3FileSystem
    except ImportError:
        raise StartupFailed("SLUICE_FILE_STORAGE is on S3, which needs: pip install s3fs") from None
    # What it remembered of a listing another gateway may have changed since.
    objects = S3FileSystem(use_listings_cache=False)
    return ObjectStorage(objects, place.removeprefix(_S3))
