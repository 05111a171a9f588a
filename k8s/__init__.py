"""Everything that knows Kubernetes: the Job of a cell, the controller, who a pod or a person is, the way in."""
