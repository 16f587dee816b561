"""Deployment: images, KubeRay manifests, and jobs on a running Ray cluster."""
