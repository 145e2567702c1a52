"""Rules of family DST: ranks and replicas that should act as one."""
