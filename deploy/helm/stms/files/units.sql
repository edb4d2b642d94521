SELECT (SELECT count(*) FROM job_units)
     + (SELECT count(*) FROM jobs
        WHERE state IN ('queued', 'running', 'cancelling')
          AND NOT EXISTS (SELECT 1 FROM job_units WHERE job_units.job_id = jobs.id))
