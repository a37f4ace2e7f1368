"""The embedded default on one machine: services under a supervisor, machines as process trees."""
