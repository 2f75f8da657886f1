"""In the place of setuptools while pip downloads vLLM's sources: pip asks a build backend for a name and a version, and vLLM's own
backend needs torch for that answer."""
