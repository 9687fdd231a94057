"""Shows what was measured: tables, figures, the page, and the progress of a run.

Import what you need from its modules: only `page` and `figures` need plotly.
"""
