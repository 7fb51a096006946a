"""Models of SQLAlchemy, an app that writes them, and a count of what was committed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass

import psycopg
from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from stagepost import App
from stagepost.app.app import engine_of


class Base(DeclarativeBase):
    pass


class Sale(Base):
    __tablename__ = "sale"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    amount: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(back_populates="sale")


class Line(Base):
    __tablename__ = "line"

    id: Mapped[int] = mapped_column(primary_key=True)
    sale_id: Mapped[int] = mapped_column(ForeignKey("sale.id"))
    item: Mapped[str] = mapped_column(unique=True)
    sale: Mapped[Sale] = relationship(back_populates="lines")


@dataclass
class Order:
    id: str


def url_of(app: App) -> str:
    """The URL of the app's data."""
    engine = engine_of(app)
    return (engine.databases.business or engine.store).address


def sqlalchemy_url(app: App) -> str:
    return url_of(app).replace("postgresql://", "postgresql+psycopg://", 1)


def make_tables(app: App) -> None:
    engine = create_engine(sqlalchemy_url(app))
    Base.metadata.create_all(engine)
    engine.dispose()


def rows(app: App, statement: str) -> list[tuple[object, ...]]:
    """What a connection of its own sees, which is what was committed."""
    url = url_of(app)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return file.execute(statement).fetchall()
    with psycopg.connect(url) as server:
        return server.execute(statement.encode()).fetchall()


def sales(app: App) -> list[str]:
    return [str(order) for (order,) in rows(app, "SELECT order_id FROM sale ORDER BY id")]
