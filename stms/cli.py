"""The command ``stms``."""

from app.cli import main as main
