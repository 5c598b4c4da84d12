"""The dashboards as data, the JSON that Grafana reads, and a sheet of them without Grafana."""
