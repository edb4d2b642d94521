"""The second protocol; ``lab/experiments/protocol_2.md`` was written before it was run on any test part."""
