"""The text and the elements of a page of the report."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input", "source"}
LINES = re.compile(r"h[1-6]|figcaption|summary|pre|t[hd]|d[td]|li|p")


class Page(HTMLParser):
    """Text and elements of a page; checks that every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.lines, self.begun = [], {}
        """Headings, cells, items and paragraphs, one a line."""
        self.feed(html)
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in VOID)
        if LINES.fullmatch(tag):
            self.begun = {tag: (dict(attrs).get("scope", tag), len(self.texts))}

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in self.begun:
            label, first = self.begun.pop(tag)
            self.lines.append(f"{label}: {' '.join(''.join(self.texts[first:]).split())}".rstrip())

    def handle_data(self, data):
        self.texts += [data] * ("style" not in self.open)
