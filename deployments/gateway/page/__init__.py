"""The status page: what a browser is given, who may use it, and the views that it draws from."""
