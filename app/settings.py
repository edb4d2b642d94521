"""Settings from environment variables ``STMS_*`` and files; the defaults are safe on a laptop."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.domain.caller_rules import ProxyRule, TokenIssuer
from app.domain.object_address import ObjectAddress, checked_bucket, checked_endpoint
from app.domain.origins import AllowedServers, Origin, allowed_pages
from app.domain.path_prefix import path_prefix
from app.encoder_settings import EncoderSettings
from app.secret_files import SecretFiles


class Settings(EncoderSettings):
    """All settings of the service."""

    model_config = SettingsConfigDict(env_prefix="STMS_", extra="ignore")

    data_dir: Path = Field(
        Path("stms-data"), description="Folder of the embedded databases and the model cache."
    )
    database_url: SecretStr | None = Field(
        None, description="SQLAlchemy address of the shared database; empty: SQLite in data_dir."
    )
    host: str = Field("127.0.0.1", description="Address to listen on; beyond loopback only with API keys.")
    port: int = Field(8000, ge=0, le=65535)
    api_processes: int = Field(1, ge=1, le=64, description="Server processes of one `stms api`.")
    drain_seconds: float = Field(
        10.0, gt=0, description="Longest time for requests in progress after SIGTERM, in seconds."
    )
    drain_listen_seconds: float = Field(
        5.0,
        ge=0,
        description="How long after SIGTERM a server accepts connections at most, part of drain_seconds: "
        "until none has come for a second. Balancers and Kubernetes learn late that it ends; 0: not at all.",
    )
    require_keys: bool = Field(
        True, description="Require API keys; false: accept local requests without one, on loopback only."
    )
    dashboard: bool = Field(True, description="Serve the dashboard at /; false: only the API.")
    secrets_dir: Path | None = Field(
        None,
        description="Folder of files named as these variables, whose texts are the values of those that are "
        "not set; a file that others can read stops the start.",
    )
    first_key_file: Path | None = Field(
        None,
        description="File with the text of the first API key, from `stms keys new-text`, which is stored if "
        "there is no key; empty: one is made in data_dir.",
    )

    tls_certificate: Path | None = Field(
        None,
        description="Certificate of the server with its chain (PEM), read again when the file changes; the "
        "server then speaks HTTPS. Empty: HTTP.",
    )
    tls_key: Path | None = Field(
        None, description="Its private key (PEM, without a password); a file that others can read is refused."
    )
    tls_client_ca: Path | None = Field(
        None,
        description="Certificates of authorities (PEM): clients must then show one of theirs, and "
        "send their API key as before.",
    )

    grpc_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port for the Open Inference Protocol over gRPC, of all query processes; needs the extra "
        "`grpc`, and API keys. Empty: no gRPC.",
    )

    bundle: Path | None = Field(
        None,
        description="Bundle, or folder of bundles, to serve without a database: `stms api` answers queries "
        "of its models, and nothing else.",
    )
    bundle_model: str | None = Field(
        None, description="Name of the model of that bundle; empty: the one that the bundle says."
    )
    keys_file: Path | None = Field(
        None,
        description="File of API keys of such a server, from `stms keys create --offline`; read again when "
        "it changes.",
    )

    max_upload_bytes: int = Field(2 * 1024**3, ge=1024, description="Largest data set file.")
    max_body_bytes: int = Field(
        1024**2, ge=1024, description="Largest JSON body outside queries; most routes take 64 KiB."
    )
    max_query_bytes: int = Field(16 * 1024**2, ge=1024, description="Largest query body.")
    max_query_rows: int = Field(100_000, ge=1, description="Most rows in one query.")
    max_query_work: int = Field(
        20_000_000_000,
        ge=1,
        description="Most multiply-adds of one query or prediction; one row of one class may be more.",
    )
    max_rows: int = Field(5_000_000, ge=1, description="Most rows in a data set.")
    max_columns: int = Field(1_000_000, ge=1, description="Most columns in a data set.")
    max_dataset_bytes: int = Field(
        4 * 1024**3, ge=1024**2, description="Largest data set in memory, regardless of the size of its file."
    )
    reader_memory_bytes: int | None = Field(
        None,
        ge=128 * 1024**2,
        description="Private memory of the process that reads one uploaded file; empty: a third of the "
        "memory of the container or machine.",
    )
    reader_seconds: float = Field(
        600.0, gt=0, description="Longest processor time to read one uploaded file, in seconds."
    )
    max_waiting_files: int = Field(
        24,
        ge=0,
        description="Uploaded files of one tenant that wait to be read by one server process before new ones "
        "get 429; a quarter while other tenants send files, too.",
    )
    max_queued_jobs: int = Field(
        10_000, ge=1, description="Waiting training jobs beyond which new ones get 429."
    )
    max_unfinished_jobs_per_key: int | None = Field(
        None,
        ge=1,
        description="Queued and running jobs of one API key beyond which new ones get 429; empty: no limit.",
    )
    max_inflight_queries: int = Field(
        256, ge=1, description="Queries in progress beyond which new ones get 429."
    )
    max_inflight_bytes: int = Field(
        512 * 1024**2,
        ge=1024**2,
        description="Bytes of large queries in progress beyond which new ones get 429.",
    )
    max_inflight_requests: int = Field(
        64, ge=1, description="Other requests in progress beyond which new ones get 429."
    )
    key_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Part of each of these three budgets that one API key may take, at least one request.",
    )
    max_connections: int = Field(
        4096, ge=1, description="Open connections of one server process beyond which new ones get 429."
    )
    max_connections_per_address: int = Field(
        1024,
        ge=0,
        description="The same for one address, except loopback and trusted proxies; 0: no limit.",
    )
    quota_stored_bytes: int = Field(
        1024**4, ge=0, description="Bytes a tenant may store, unless an operator has set its quota."
    )
    quota_datasets: int = Field(10_000, ge=0, description="Data sets a tenant may have, likewise.")
    quota_versions: int = Field(100_000, ge=0, description="Versions of models a tenant may have, likewise.")
    quota_unfinished_jobs: int = Field(
        1000, ge=0, description="Queued and running jobs a tenant may have, likewise."
    )
    quota_keys: int = Field(1000, ge=0, description="Valid API keys a tenant may have, likewise.")
    max_uploads: int = Field(
        32, ge=1, description="Uploads in progress beyond which new ones get 429; for one key its share."
    )
    max_inflight_upload_bytes: int = Field(
        32 * 1024**3,
        ge=1024**2,
        description="Bytes of uploads in progress beyond which new ones get 429; for one key its share.",
    )
    max_streams_per_key: int = Field(
        100, ge=1, description="Event streams of one API key in one server process; more get 429."
    )
    rate_limit: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Requests per second of one API key, or of one address without a key; 0: no limit.",
    )
    rate_burst: int = Field(0, ge=0, le=10**6, description="Requests in one burst; 0: those of one second.")
    metrics_models: bool | None = Field(
        None,
        description="Whether /metrics, which needs no key, tells names of models and tenants. Default: as "
        "long as all keys belong to the tenant default.",
    )
    rate_work: int = Field(
        1_000_000_000,
        ge=0,
        description="Multiply-adds of a prediction that count as one request of the rate limit; 0: none do.",
    )
    auth_failure_rate: float = Field(
        10.0,
        ge=0,
        le=1e6,
        description="Wrong API keys per second from one address beyond which it gets 429; 0: no limit.",
    )
    keyless_rate_limit: float = Field(
        50.0,
        ge=0,
        le=1e6,
        description="Requests per second of one address, other than loopback, to paths that need no key; "
        "health probes and /metrics are not counted; 0: no limit.",
    )
    trusted_proxies: str = Field(
        "",
        description="Addresses or networks, comma-separated, whose X-Forwarded-For and X-Forwarded-Prefix "
        "are trusted.",
    )
    token_issuers: list[TokenIssuer] = Field(
        [],
        max_length=16,
        description="Issuers of JSON Web Tokens that are accepted in place of API keys: a JSON list, see "
        "single-sign-on.md.",
    )
    proxy_user_header: str = Field(
        "",
        description="Header in which a trusted proxy names the person that it has signed in, such as "
        "X-Forwarded-Email, for the dashboard; empty: people sign in with API keys.",
    )
    proxy_groups_header: str = Field(
        "", description="Header with the groups of this person, comma-separated; empty: none."
    )
    proxy_rules: list[ProxyRule] = Field(
        [], max_length=100, description="What these people may do, as a JSON list."
    )
    root_path: str = Field(
        "",
        description="Path below which a proxy publishes the service, such as /stms, whether or not the proxy "
        "takes it from the paths of requests; empty: X-Forwarded-Prefix of trusted proxies, or the root.",
    )
    cors_origins: str = Field(
        "",
        description="Origins, comma-separated, whose pages browsers let ask queries with an API key, such as "
        "https://app.example.com or https://*.example.com; empty: none.",
    )

    max_classes: int = Field(2_000_000, ge=1, description="Most classes of an imported head.")
    max_head_bytes: int = Field(8 * 1024**3, ge=1024, description="Largest file of an imported head.")

    max_package_bytes: int = Field(
        16 * 1024**2, ge=1024, description="Largest student or encoder that is sent for local evaluation."
    )
    max_bundle_bytes: int = Field(8 * 1024**3, ge=1024, description="Largest bundle of a version.")
    bundle_keys: Path | None = Field(
        None,
        description="PEM file of public keys: only bundles that one of them has signed are imported or "
        "served; needs the extra `signing`. Empty: signatures are not looked at.",
    )

    blobs: Annotated[str, AfterValidator(checked_bucket)] = Field(
        "",
        description="Bucket and prefix of an S3-compatible object store for blobs of 256 KiB and more, "
        "such as s3://bucket/stms; needs the extra `objects`. Empty: the database keeps all.",
    )
    blobs_endpoint: Annotated[str, AfterValidator(checked_endpoint)] = Field(
        "", description="Address of the object store, such as https://minio.example.com; empty: that of AWS."
    )
    blobs_public_endpoint: Annotated[str, AfterValidator(checked_endpoint)] = Field(
        "", description="By which clients reach it, as presigned addresses have it; empty: the same."
    )
    blobs_region: str = Field("", description="Region of the bucket; empty: AWS_REGION, or us-east-1.")
    blobs_key_id: str = Field(
        "",
        description="Access key of the object store; empty: AWS_… variables, or the identity of the machine.",
    )
    blobs_secret: SecretStr | None = Field(None, description="Its secret.")
    uploads: Literal["any", "presigned"] = Field(
        "any",
        description="`presigned`: files of data sets are refused by the API, and sent to the object store.",
    )

    cache_dir: Path | None = Field(
        None, description="Folder of the model cache, on a local disk; empty: cache in data_dir."
    )
    cache_disk_bytes: int = Field(
        32 * 1024**3, ge=1024**2, description="Disk budget of the model cache, shared by all processes."
    )
    cache_bytes: int = Field(1024**3, ge=1024**2, description="Memory budget of loaded students per process.")
    refresh_seconds: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Interval at which a server polls for moved aliases and changed keys, in seconds.",
    )
    max_stale_seconds: float = Field(
        0.0,
        ge=0,
        description="Time without a readable registry after which a server is not ready for queries any "
        "more, in seconds; 0: it answers from what it has read for as long as the database is away.",
    )
    move_seconds: float = Field(
        1.5,
        gt=0,
        le=60,
        description="Longest preloading of a moved alias, in seconds; then queries use the new version.",
    )

    database_pool_size: int = Field(
        8,
        ge=1,
        le=200,
        description="Database connections a process keeps open; under load it opens as many again.",
    )
    database_statement_seconds: float = Field(
        30.0, ge=0, description="Longest statement on PostgreSQL; 0: no limit. Migrations have no limit."
    )
    database_lock_seconds: float = Field(
        10.0, ge=0, description="Longest wait for a lock on PostgreSQL; 0: no limit."
    )
    database_idle_seconds: float = Field(
        60.0, ge=0, description="Longest pause in an open transaction on PostgreSQL; 0: no limit."
    )
    retain_jobs_days: float = Field(
        90.0,
        ge=0,
        description="Days after which ended jobs without a published version, and ended evaluations, are"
        " deleted; 0: never.",
    )
    retain_requests_days: float = Field(
        7.0, ge=0, description="Days after which idempotency keys of submitted jobs are deleted; 0: never."
    )
    query_samples: Literal["off", "ids", "rows"] = Field(
        "off",
        description="What monitors may keep of the answers that they choose. ids: their scores, times and"
        " request ids, never a row; rows: also the rows, where a monitor says so; off: no alias can have a"
        " monitor.",
    )
    retain_samples_days: float = Field(
        90.0, ge=0, description="Days that a monitor may keep such samples and feedback; 0: as it says."
    )
    retain_keys_days: float = Field(
        90.0,
        ge=0,
        description="Days after which API keys that were revoked or have expired are deleted; 0: never.",
    )
    retain_audit_records: int = Field(
        1_000_000,
        ge=0,
        description="Most audit records of a tenant; older ones are deleted. 0: no limit.",
    )
    retain_audit_days: float = Field(
        365.0, ge=0, description="Days after which audit records are deleted; 0: never."
    )

    remote_teachers: str = Field(
        "",
        description="Origins of model servers, comma-separated, that jobs may ask for scores, such as "
        "https://triton.example.com:8000 or https://*.example.com; empty: none.",
    )
    dataset_sources: str = Field(
        "",
        description="Origins, comma-separated, from whose addresses data sets may be fetched, such as "
        "https://bucket.s3.amazonaws.com or https://*.blob.core.windows.net; empty: none.",
    )
    remote_teacher_tokens: dict[str, SecretStr] = Field(
        {}, description='Bearer tokens for them: a JSON object {"https://triton.example.com:8000": "…"}.'
    )

    webhooks: str = Field(
        "",
        description="Origins of receivers, comma-separated, to which webhooks may be sent, such as "
        "https://hooks.example.com or https://*.example.com; empty: none.",
    )
    webhook_secret: SecretStr | None = Field(
        None,
        description="Text of at least 32 characters from which the secrets of webhooks are made, the same "
        "for all processes; empty: one is made in data_dir, with SQLite only.",
    )

    solver_threads: int = Field(0, ge=0, description="Threads of one solver process; 0: all cores.")
    solver_niceness: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Niceness of solver processes and their session; servers have 0. Empty: 5 of `stms"
        " serve`, 0 of `stms worker`. 20: they compute only while nothing else in their session or container"
        " does (SCHED_IDLE of Linux), which delays queries least.",
    )
    solver_memory_bytes: int = Field(
        0,
        ge=0,
        description="Memory limit of one solver process; 0: an equal part of the machine's or container's.",
    )
    solver_stall_seconds: float = Field(
        600.0,
        ge=0,
        description="Time without answers and processor time after which a solver is killed; 0: never.",
    )
    idle_solvers: int = Field(
        1, ge=0, le=64, description="Idle solvers a worker keeps, with the data of a job in memory."
    )
    idle_solver_seconds: float = Field(
        30.0, ge=0, description="How long an idle solver waits for the job's next unit of work."
    )
    spare_solver: bool = Field(
        True,
        description="Start a solver (about 100 MB) when a job is likely, so that no job waits for its start.",
    )
    worker_concurrency: int = Field(1, ge=1, le=64, description="Units of work a worker runs concurrently.")
    classes_per_chunk: int = Field(64, ge=1, description="Most classes in one unit of work.")
    max_units_per_key: int | None = Field(
        None,
        ge=1,
        description="Units of work that the jobs of one API key run concurrently; empty: no limit.",
    )
    heartbeat_seconds: float = Field(1.0, gt=0, description="Interval of a worker's heartbeats.")
    takeover_seconds: float = Field(
        4.0, gt=0, description="Time without a heartbeat after which another worker takes over."
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Lowest level that is logged."
    )

    log_format: Literal["text", "json"] = Field(
        "text", description="`json`: one object a line, with request, API key, job and trace."
    )

    audit_log: Literal["", "stderr"] = Field(
        "",
        description="`stderr`: a line of JSON for each audit record, after it is committed; empty: none.",
    )

    trace_endpoint: str = Field(
        "",
        description="Collector of traces (OTLP over HTTP, such as http://collector:4318). "
        "Empty: OTEL_EXPORTER_OTLP_ENDPOINT; without that nothing is traced.",
    )
    trace_rate: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of requests that are traced besides those with a sampled traceparent.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments come before variables, and variables before files. Reading raises BadSecretFile."""
        return init_settings, env_settings, SecretFiles(settings_cls)

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for network in filter(None, (part.strip() for part in value.split(","))):
            ip_network(network, strict=False)
        return value

    @field_validator("token_issuers")
    @classmethod
    def _are_different(cls, value: list[TokenIssuer]) -> list[TokenIssuer]:
        if len({one.issuer for one in value}) < len(value):
            raise ValueError("each issuer is listed once")
        return value

    @field_validator("proxy_user_header", "proxy_groups_header")
    @classmethod
    def _is_a_header_of_people(cls, value: str) -> str:
        if value and not re.fullmatch(r"(X|Remote)-[A-Za-z0-9-]{1,60}", value, re.IGNORECASE):
            raise ValueError("must be the name of a header that begins with X- or Remote-")
        return value

    @model_validator(mode="after")
    def _names_people_completely(self) -> Self:
        if self.proxy_user_header and not (self.proxies and self.proxy_rules):
            raise ValueError("STMS_PROXY_USER_HEADER needs STMS_TRUSTED_PROXIES and STMS_PROXY_RULES.")
        if (self.proxy_groups_header or self.proxy_rules) and not self.proxy_user_header:
            raise ValueError("STMS_PROXY_GROUPS_HEADER and STMS_PROXY_RULES need STMS_PROXY_USER_HEADER.")
        return self

    @field_validator("root_path")
    @classmethod
    def _is_a_prefix(cls, value: str) -> str:
        return path_prefix(value)

    @field_validator("cors_origins")
    @classmethod
    def _are_origins_of_pages(cls, value: str) -> str:
        allowed_pages(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("STMS_TLS_CERTIFICATE and STMS_TLS_KEY are given together")
        if self.grpc_port is not None and not self.require_keys:
            raise ValueError("STMS_GRPC_PORT needs API keys, but STMS_REQUIRE_KEYS is false")
        if self.grpc_port is not None and self.grpc_port == self.port:
            raise ValueError("STMS_GRPC_PORT must be another port than STMS_PORT")
        if self.bundle is not None and self.database_url is not None:
            raise ValueError("a server of STMS_BUNDLE has a database of its own: leave STMS_DATABASE_URL out")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("STMS_TLS_CLIENT_CA needs STMS_TLS_CERTIFICATE and STMS_TLS_KEY")
        return self

    @field_validator("grpc_port", mode="before")
    @classmethod
    def _may_be_empty(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("remote_teachers", "webhooks", "dataset_sources")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        AllowedServers.of(value)
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _is_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        if len(value.get_secret_value()) < 32:
            raise ValueError("must have at least 32 characters, such as of: openssl rand -base64 32")
        return value

    @model_validator(mode="after")
    def _has_an_object_store(self) -> Self:
        if self.uploads == "presigned" and not self.blobs:
            raise ValueError("STMS_UPLOADS=presigned needs STMS_BLOBS")
        if self.blobs_key_id and not self.blobs_secret:
            raise ValueError("STMS_BLOBS_KEY_ID needs STMS_BLOBS_SECRET")
        return self

    @field_validator("database_url")
    @classmethod
    def _names_an_absolute_file(cls, value: SecretStr | None) -> SecretStr | None:
        """Solvers have another working folder, so a relative file of SQLite is looked up here."""
        if value is None or not value.get_secret_value().strip():
            return None
        if not re.match(r"(sqlite|postgresql)(\+\w+)?://", value.get_secret_value()):
            raise ValueError("must begin with postgresql:// or sqlite:///")
        match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/:?].*)", value.get_secret_value())
        return SecretStr(f"{match[1]}{Path.cwd() / match[2]}") if match else value

    @field_validator("remote_teacher_tokens")
    @classmethod
    def _are_tokens(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for origin, token in value.items():
            Origin.of(origin)
            if not re.fullmatch(r"[\x21-\x7e]+", token.get_secret_value()):
                raise ValueError(f"the token of {origin} must be printable ASCII without spaces")
        return value

    @property
    def proxies(self) -> tuple[str, ...]:
        """The trusted proxies as separate addresses and networks."""
        return tuple(filter(None, (part.strip() for part in self.trusted_proxies.split(","))))

    @property
    def object_address(self) -> ObjectAddress | None:
        """Where large blobs are; None if the database keeps all bytes."""
        secret = "" if self.blobs_secret is None else self.blobs_secret.get_secret_value()
        reached = (self.blobs_endpoint, self.blobs_public_endpoint, self.blobs_region)
        return ObjectAddress.of(self.blobs, *reached, self.blobs_key_id, secret) if self.blobs else None

    @property
    def cache_folder(self) -> Path:
        """Folder of packed models on local disk."""
        return self.data_dir / "cache" if self.cache_dir is None else self.cache_dir

    @property
    def app_database_url(self) -> str:
        """Database of data sets, models, jobs and keys."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.data_dir / 'stms.sqlite').absolute()}"

    @property
    def jobs_database_url(self) -> str:
        """Database of the job engine: the same PostgreSQL, or a second SQLite file."""
        if self.database_url is not None and not self.embedded:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.data_dir / 'jobs.sqlite').absolute()}"

    @property
    def embedded(self) -> bool:
        """Whether the service runs on SQLite, on one machine."""
        return self.app_database_url.startswith("sqlite")
