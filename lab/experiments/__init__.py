"""The paper's experiment as a program: data, protocol, resumable results, tables, figures and report."""
