# Copied from `core/packed/_text_terms.pyi` by ``make client``: do not edit.
"""The compiled functions of `core.packed.single_text`. Arrays are packed; what `prepare` gives is opaque."""

def prepare(
    classes: bytes, frequencies: bytes, tables: tuple[tuple[int, bytes, bytes, int], ...], /
) -> object: ...
def find_terms(prepared: object, text: str, /) -> tuple[bytes, bytes]: ...
