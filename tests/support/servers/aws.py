"""The AWS side of Bedrock: event streams with checksums, and validation of signatures."""

import struct
from base64 import b64encode
from binascii import crc32
from typing import Any

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ACCESS_KEY, SECRET_KEY, REGION = "AKIAOFATEST", "secret-of-a-test", "eu-west-1"
CREDENTIALS = Credentials(ACCESS_KEY, SECRET_KEY)


def event_stream_frame(name: str, payload: Any, *, kind: str = "event") -> bytes:
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    encoded_headers = b"".join(
        struct.pack("!B", len(header))
        + header.encode()
        + b"\x07"
        + struct.pack("!H", len(value))
        + value.encode()
        for header, value in headers.items()
    )
    body = msgspec.json.encode(payload)
    prelude = struct.pack("!II", 16 + len(encoded_headers) + len(body), len(encoded_headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + encoded_headers + body
    return message + struct.pack("!I", crc32(message))


def chunk_frame(event: Any) -> bytes:
    """Wrap a provider event as InvokeModelWithResponseStream does."""
    return event_stream_frame("chunk", {"bytes": b64encode(msgspec.json.encode(event)).decode()})


def is_signature_valid(request: bytes, *, service: str = "bedrock") -> bool:
    """Check whether AWS would accept the signature of a raw request."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): message.strip() for name, _, message in (line.partition(":") for line in lines)}
    message = dict(part.strip().split("=", 1) for part in headers["authorization"].split(" ", 1)[1].split(","))
    covered = {name: headers[name] for name in message["SignedHeaders"].split(";")}
    repeated = AWSRequest(method=method, url=f"http://{headers['host']}{path}", headers=covered, data=body)
    repeated.context["timestamp"] = headers["x-amz-date"]
    signer = SigV4Auth(CREDENTIALS, service, REGION)
    request_text = signer.string_to_sign(repeated, signer.canonical_request(repeated))
    return bool(signer.signature(request_text, repeated) == message["Signature"])
