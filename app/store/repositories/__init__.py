"""All SQL queries of the service, one repository per resource. Repositories do not commit."""
