"""The causes the doctor knows, as data: one JSON file an area, plus tables with source and date."""

from doctor.catalogue.loader import Cause, all_causes, cause, table

__all__ = ["Cause", "all_causes", "cause", "table"]
