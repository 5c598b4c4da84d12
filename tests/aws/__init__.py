"""What Ariadne asks of AWS and Kubernetes, against stand-ins that speak their protocols."""
