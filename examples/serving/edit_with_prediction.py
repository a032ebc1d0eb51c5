"""A code edit with a predicted output: the old version of the code is the prediction of the new one.

forerun serve MODEL --served-model-name m --port 8000
python examples/serving/edit_with_prediction.py http://localhost:8000/v1
"""

import sys
import time

from openai import OpenAI, omit

CODE = '''def area(width, height):
    """The area of a rectangle."""
    return width * height


def perimeter(width, height):
    """The perimeter of a rectangle."""
    return 2 * (width + height)
'''

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")


def edit(instruction: str, code: str, *, predict: bool) -> tuple[str, float, int]:
    """The edited code, the seconds that it took, and the predicted tokens that came true."""
    began = time.perf_counter()
    answer = client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": f"{instruction} Answer with the code only.\n\n{code}"}],
        temperature=0,
        max_tokens=96,
        prediction={"type": "content", "content": code} if predict else omit,
    )
    seconds = time.perf_counter() - began
    details = answer.usage.completion_tokens_details if answer.usage else None
    num_accepted = details.accepted_prediction_tokens if details else 0
    return answer.choices[0].message.content or "", seconds, num_accepted or 0


baseline, seconds, _ = edit("Rename `width` to `length`.", CODE, predict=False)
edited, seconds_predicted, num_accepted = edit("Rename `width` to `length`.", CODE, predict=True)
print(edited)
print(f"{seconds:.2f} s without and {seconds_predicted:.2f} s with the prediction,")
print(f"{num_accepted} draft tokens accepted or emitted as predicted; identical output: {edited == baseline}")
