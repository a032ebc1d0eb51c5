"""A server that knows /v1/models and nothing else. Arguments: --host HOST --port PORT."""

from __future__ import annotations

import http.server
import sys


class Models(http.server.SimpleHTTPRequestHandler):
    """Answers every request without a body."""

    def do_GET(self) -> None:
        """Status 200 for the list of models, else 404."""
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()


if __name__ == "__main__":
    http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Models).serve_forever()
