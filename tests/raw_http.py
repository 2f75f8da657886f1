"""Byte for byte to a server and back, for the scripts that record what real servers send."""
import socket


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def exchange(port, request):
    """The answer's bytes, until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received
