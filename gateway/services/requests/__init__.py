"""What is known of requests once they are over, who is told, and why each took what it took."""

from gateway.services.requests.causes import explain
from gateway.services.requests.ended import EndedRequests, Listener
from gateway.services.requests.recent import RecentRequests
from gateway.services.requests.recorder import Dropped, RecordBounds, RequestRecorder
from gateway.services.requests.sampling import Sampler, in_share

__all__ = [
    "Dropped",
    "EndedRequests",
    "Listener",
    "RecentRequests",
    "RecordBounds",
    "RequestRecorder",
    "Sampler",
    "explain",
    "in_share",
]
