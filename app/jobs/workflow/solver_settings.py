"""The settings that a solver process gets about its surroundings."""

from __future__ import annotations

from app.jobs.identity import solver_memory
from app.jobs.solver.messages import SolverSettings
from app.settings import Settings
from app.store.private_files import installation_key


def solver_settings(settings: Settings, tenant: str, work_id: str, dataset_id: str) -> SolverSettings:
    """The settings of a solver, with the default hyper-parameters.

    work_id: of the job or evaluation. dataset_id: of the rows that it reads.
    """
    return SolverSettings(
        dataset_id=dataset_id,
        tenant=tenant,
        spec={},
        threads=settings.solver_threads,
        log_level=settings.log_level,
        database_url=settings.app_database_url,
        cache_dir=str(settings.cache_folder.absolute()),
        cache_key=installation_key(settings.data_dir).hex(),
        cache_disk_bytes=settings.cache_disk_bytes,
        memory_bytes=solver_memory(settings),
        stall_seconds=settings.solver_stall_seconds,
        job_id=work_id,
        log_format=settings.log_format,
        objects=settings.object_address,
    )
