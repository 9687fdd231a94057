"""Who was missing when: one row for each site that did not do what it was asked, and why."""

from fedexperts.measure.journal import Journal

ABSENCES = "absences.csv"


class Absences(Journal):
    """Keeps the file `absences.csv`."""

    columns = ("round", "client", "site", "task", "why")
