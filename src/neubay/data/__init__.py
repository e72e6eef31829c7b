"""Datasets: read from any source, checked, as one tape."""

from neubay.data.dataset import Dataset as Dataset
from neubay.data.findings import Finding as Finding
from neubay.data.sources import load as load
from neubay.data.validation import validate as validate
