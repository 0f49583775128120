"""Trainers that take part: each a program that is started with the path of a job's file."""
