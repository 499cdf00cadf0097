"""Guards: each private name of Twisted that the wire ring relies on exists and means what it meant."""

from __future__ import annotations

import inspect
import re

from twisted.internet import abstract, tcp
from twisted.internet.epollreactor import EPollReactor
from twisted.protocols import tls
from twisted.web import http, server

from inference_lab.wire.h1.channel import LabChannel, LabSite
from inference_lab.wire.request import LabRequest


def source(thing: object) -> str:
    return inspect.getsource(thing)  # type: ignore[arg-type]


def test_a_file_descriptor_queues_in_its_temporary_buffer_and_counts_it() -> None:
    assert "self._tempDataLen += len(data)" in source(abstract.FileDescriptor.write)
    assert "self._writeDisconnected" in source(abstract.FileDescriptor.write)
    assert {"dataBuffer", "offset", "_writeDisconnected"} <= vars(abstract.FileDescriptor).keys()


def test_an_epoll_reactor_asks_its_poller_for_as_many_descriptors_as_it_has() -> None:
    assert "self._poller.poll(timeout, len(self._selectables))" in source(EPollReactor.doPoll)
    assert set(re.findall(r"self\._poller\.(\w+)", source(EPollReactor))) <= {
        "poll",
        "register",
        "modify",
        "unregister",
    }


def test_a_port_makes_its_connections_with_its_transport_attribute() -> None:
    assert tcp.Port.transport is tcp.Server
    assert "self.transport(" in source(tcp.Port.doRead)


def test_tls_holds_bytes_in_its_send_buffer_and_its_aggregator() -> None:
    assert "self._appSendBuffer.append(octets)" in source(tls.TLSMemoryBIOProtocol)
    assert "_aggregator" in source(tls.BufferingTLSTransport)
    aggregator = tls._AggregateSmallWrites(lambda _: None, None)  # type: ignore[arg-type] # noqa: SLF001
    assert aggregator._buffer == []  # noqa: SLF001


def test_a_channel_keeps_what_is_pipelined_in_its_data_buffer_while_it_handles_a_request() -> None:
    raw = source(http.HTTPChannel.rawDataReceived)
    assert "if self._handlingRequest:" in raw
    assert "self._dataBuffer.append(data)" in raw
    assert 'b"".join(self._dataBuffer)' in source(http.HTTPChannel.requestDone)


def test_a_channel_knows_whether_its_transport_has_paused_it() -> None:
    assert "self._waitingForTransport = True" in source(http.HTTPChannel.pauseProducing)
    assert "self._waitingForTransport = False" in source(http.HTTPChannel.resumeProducing)
    assert "self.channel.registerProducer(producer, streaming)" in source(http.Request.registerProducer)


def test_the_methods_that_are_overridden_are_the_ones_twisted_calls() -> None:
    assert "req.gotLength(self.length)" in source(http.HTTPChannel.allHeadersReceived)
    assert "handleContentChunk" in source(http.HTTPChannel)
    assert "req.requestReceived(command, path, version)" in source(http.HTTPChannel.allContentReceived)
    assert "self._command = command" in source(http.HTTPChannel.lineReceived)
    assert "self._path = request" in source(http.HTTPChannel.lineReceived)
    assert "self._version = version" in source(http.HTTPChannel.lineReceived)
    assert callable(http.HTTPChannel._respondToBadRequestAndDisconnect)  # noqa: SLF001
    assert "self.channel.requestDone(self)" in source(http.Request._cleanup)  # noqa: SLF001
    assert "channel.requestFactory = self.requestFactory" in source(server.Site.buildProtocol)
    assert LabSite.protocol is LabChannel
    assert LabSite.requestFactory is LabRequest


def test_all_bytes_of_a_response_pass_the_methods_of_the_channel_that_count_them() -> None:
    write = source(http.Request.write)
    assert "self.channel.writeHeaders(version, code, reason, self.responseHeaders)" in write
    assert "self.channel.writeSequence(toChunk(data))" in write
    assert "self.channel.write(data)" in write
    assert "self.channel.write(" in source(http.Request.finish)
    assert "self.transport" not in write + source(http.Request.finish)


def test_a_lost_connection_is_told_to_its_requests_when_its_socket_is_closed() -> None:
    assert "request.connectionLost(reason)" in source(http.HTTPChannel.connectionLost)
    lost = source(tcp.Connection.connectionLost)
    assert lost.index("_closeSocket") < lost.index("protocol.connectionLost(reason)")


def test_a_request_that_has_written_its_own_head_and_end_writes_neither_again() -> None:
    assert "if not self.startedWriting:" in source(http.Request.write)
    finish = source(http.Request.finish)
    assert "if not self.startedWriting:" in finish
    assert "if self.chunked:" in finish


def test_a_connection_is_shut_down_before_its_socket_is_closed_so_that_a_kept_one_holds_no_fin_back() -> None:
    close = source(tcp.Server._closeSocket)  # noqa: SLF001
    assert close.index("skt.shutdown(2)") < close.index("skt.close()")
    assert tcp.Server._shouldShutdown  # noqa: SLF001
