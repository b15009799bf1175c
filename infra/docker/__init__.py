"""Images: one Dockerfile and one lock file each, and the script that cuts the lock files out of requirements.lock."""
