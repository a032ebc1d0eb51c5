"""Audits of whether speculation changes the output; `exact` proves forerun's own core by enumeration."""
