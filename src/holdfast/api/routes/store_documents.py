"""Documents over HTTP: among them the tokens, so only for those who may make tokens."""

from __future__ import annotations

from holdfast.api.checks import check_number, check_size
from holdfast.api.routes.store_calls import ADMIN, answers
from holdfast.api.routing import Call, Routes
from holdfast.core.names import check_document
from holdfast.stores.contract import Document
from holdfast.wire import calls
from holdfast.wire.limits import LARGEST_EXACT

routes = Routes("store")


@answers(calls.DOCUMENTS, ADMIN, routes)
async def _documents(call: Call, request: calls.Kind) -> list[Document]:
    """All documents of a kind."""
    return await call.store.documents(check_document(request.kind))


@answers(calls.DOCUMENT, ADMIN, routes)
async def _document(call: Call, request: calls.DocumentName) -> Document | None:
    """One document."""
    return await call.store.document(check_document(request.kind), check_document(request.name))


@answers(calls.PUT_DOCUMENT, ADMIN, routes)
async def _put_document(call: Call, request: calls.PutDocument) -> bool:
    """Replaces or removes a document."""
    check_document(request.kind)
    check_document(request.name)
    check_number(request.expected, "expected", LARGEST_EXACT)
    check_size(request.value or b"", "bytes of the document", call.gateway.settings.max_payload_bytes)
    return await call.store.put_document(request.kind, request.name, request.value, request.expected)
