"""From a laptop to a cluster: images, KubeRay manifests, and jobs on a running Ray."""
