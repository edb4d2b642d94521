"""Every query of the program, one repository a resource. None of them commits."""
