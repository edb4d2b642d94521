"""Settings: from environment variables ``STMS_*``; each has a default that is safe on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything an operator can set."""

    model_config = SettingsConfigDict(env_prefix="STMS_", extra="ignore")

    data_dir: Path = Field(
        Path("stms-data"), description="Folder of the embedded databases and the model cache."
    )
    database_url: SecretStr | None = Field(
        None, description="SQLAlchemy address of the shared database; empty: SQLite in data_dir."
    )
    host: str = Field("127.0.0.1", description="Address to listen on; beyond loopback only with API keys.")
    port: int = Field(8000, ge=0, le=65535)
    workers: int = Field(1, ge=1, le=64, description="Server processes of one `stms api`.")
    drain_seconds: float = Field(
        10.0, gt=0, description="How long requests under way may take to end after SIGTERM."
    )
    require_keys: bool | None = Field(
        None, description="Ask for API keys; empty: when at least one key exists or host is not loopback."
    )

    max_upload_bytes: int = Field(2 * 1024**3, ge=1024, description="Largest data set file.")
    max_body_bytes: int = Field(1024**2, ge=1024, description="Largest JSON body outside queries.")
    max_query_bytes: int = Field(16 * 1024**2, ge=1024, description="Largest query body.")
    max_query_rows: int = Field(100_000, ge=1, description="Most rows in one query.")
    max_rows: int = Field(5_000_000, ge=1, description="Most rows in a data set.")
    max_columns: int = Field(1_000_000, ge=1, description="Most columns in a data set.")
    max_dataset_bytes: int = Field(
        4 * 1024**3, ge=1024**2, description="Largest data set in memory, whatever the size of its file."
    )
    max_queued_jobs: int = Field(1000, ge=1, description="Training jobs waiting before new ones are shed.")
    max_inflight_queries: int = Field(256, ge=1, description="Queries under way before new ones are shed.")

    max_inflight_bytes: int = Field(
        512 * 1024**2, ge=1024**2, description="Bytes of large queries under way before new ones are shed."
    )
    max_inflight_requests: int = Field(
        64, ge=1, description="Other requests under way before new ones are shed."
    )
    max_connections: int = Field(
        4096, ge=1, description="Open connections of one server process before new ones are shed."
    )

    max_classes: int = Field(2_000_000, ge=1, description="Most classes of an imported head.")
    max_head_bytes: int = Field(8 * 1024**3, ge=1024, description="Largest file of an imported head.")

    cache_dir: Path | None = Field(
        None, description="Folder of the model cache, on a local disk; empty: cache in data_dir."
    )
    cache_disk_bytes: int = Field(
        32 * 1024**3, ge=1024**2, description="Disk budget of the model cache, shared by all processes."
    )
    cache_bytes: int = Field(1024**3, ge=1024**2, description="Memory budget of loaded students per process.")
    refresh_seconds: float = Field(
        0.25, gt=0, le=1, description="How often a server looks for moved aliases and changed keys."
    )

    solver_threads: int = Field(0, ge=0, description="Threads of one solver process; 0: all cores.")
    worker_concurrency: int = Field(1, ge=1, le=64, description="Chunks a worker trains at once.")
    classes_per_chunk: int = Field(64, ge=1, description="Classes in one queue item.")
    heartbeat_seconds: float = Field(1.0, gt=0, description="How often a worker says that it is alive.")
    takeover_seconds: float = Field(5.0, gt=0, description="Silence after which another worker takes over.")

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level logged.")

    @property
    def cache_folder(self) -> Path:
        """Where packed models are on local disk."""
        return self.data_dir / "cache" if self.cache_dir is None else self.cache_dir

    @property
    def app_database_url(self) -> str:
        """Where data sets, models, jobs and keys are."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.data_dir / 'stms.sqlite').absolute()}"

    @property
    def jobs_database_url(self) -> str:
        """Where the job engine keeps its own tables: the same PostgreSQL, or a second SQLite file."""
        if self.database_url is not None and not self.embedded:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.data_dir / 'jobs.sqlite').absolute()}"

    @property
    def embedded(self) -> bool:
        """One machine, SQLite."""
        return self.app_database_url.startswith("sqlite")
