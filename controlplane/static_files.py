"""How collected static files are stored: named by content, compressed by gzip."""

from __future__ import annotations

from typing import Any

from whitenoise.compress import Compressor
from whitenoise.storage import CompressedManifestStaticFilesStorage


class GzippedManifestStorage(CompressedManifestStaticFilesStorage):
    """Without Brotli, whichever packages bring it: at its best quality it takes 50 s of a first start, gzip 6 s."""

    def create_compressor(self, **kwargs: Any) -> Compressor:
        return Compressor(use_brotli=False, **kwargs)
