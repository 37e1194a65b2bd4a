"""Executes a notebook as nbclient does behind a kernel gateway; prints it. argv: the gateway's URL.

A program, since Jupyter Server's gateway client is one for the whole process.
"""

from __future__ import annotations

import sys

import nbformat
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.gateway.managers import GatewayKernelManager
from nbclient import NotebookClient

SOURCES = [
    "import sys\nx = 6 * 7\nprint('out', x); print('err', file=sys.stderr)",
    "x",
    """
from IPython.display import HTML, Image, display
display(HTML('<table><tr><td>1</td></tr></table>'))
display(Image(data=bytes.fromhex('89504e470d0a1a0a') + bytes(64), format='png'))
""",
    "shown = display('first', display_id='d')",
    "shown.update('second')",
    "1 / 0",
    "input('who? ')",
    "for i in range(2000): print(i)",
    "x + 1",
]

GatewayClient.instance().url = sys.argv[1]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in SOURCES])
client = NotebookClient(
    notebook, timeout=60, allow_errors=True, kernel_manager_class=GatewayKernelManager
)
client.execute()
nbformat.validate(notebook)
print(nbformat.writes(notebook))
