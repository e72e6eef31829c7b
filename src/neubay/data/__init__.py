"""Datasets: read from any source, checked, as one tape."""

from neubay.data.dataset import Dataset as Dataset
