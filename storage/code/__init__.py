"""Code versions: the job's directory as one archive."""
