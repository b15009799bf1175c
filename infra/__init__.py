"""The command line, the local stack and the deployment files."""
