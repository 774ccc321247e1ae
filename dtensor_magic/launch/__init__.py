"""``dtensor-magic launch``: the clients of a script on this node, or this node's part of a job."""
