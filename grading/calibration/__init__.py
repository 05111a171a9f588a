"""Calibration: what a judge's word is worth, measured on rows that people labelled.

A reviewer labels evidence without seeing the judge's verdict; a row joins evidence, labels and verdict; a record is
compiled from rows and holds no count that was supplied; an operator's registry says which records are trusted, until
when and under which policy. A hash shows integrity, not origin: two names are no proof of two people.
"""
