"""The part of the core that evaluates students, which every build copies from `core`."""
