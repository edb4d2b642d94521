"""How the service is deployed: the Helm chart and what is made from it, and the monitoring."""
