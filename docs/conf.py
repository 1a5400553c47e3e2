"""How Sphinx makes a site of these pages. Runs where the package is installed, called by ``make docs``."""

from __future__ import annotations

import airflow_checkpoint_provider

project = "airflow-checkpoint-provider"
release = version = airflow_checkpoint_provider.__version__
html_title = f"{project} {release}"
html_theme = "furo"  # light and dark, and a search that needs no server
html_copy_source = False
smartquotes = False  # "job" is typed as it is shown
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

myst_heading_anchors = 4  # without extensions of MyST: the pages are read on the host of the repository, too

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature of an operator is long enough; its parameters are described one by one
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
