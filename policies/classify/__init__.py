"""Classification: evidence of alerts, logs and drivers, and the incident class that follows."""
