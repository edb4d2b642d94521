"""The second protocol, written down in ``experiments/protocol_2.md`` before it was run on any test part."""
